// Pages work without this. It pauses what refreshes itself, and says when it has failed.
"use strict";
(() => {
  let paused = false;
  let failures = 0;
  const live = () => document.querySelector("[data-live]");
  const status = (text) => {
    const line = document.querySelector("[data-live-status]");
    if (line && line.textContent !== text) line.textContent = text;
  };

  document.addEventListener("click", (event) => {
    const button = event.target.closest("[data-pause]");
    if (!button) return;
    paused = !paused;
    button.setAttribute("aria-pressed", String(paused));
    button.textContent = paused ? "Go on" : "Pause";
    status(paused ? "Paused: the figures stand still." : "");
  });

  // Not while nobody looks, while somebody works in the table, or when paused (WCAG 2.2.2).
  document.addEventListener("htmx:beforeRequest", (event) => {
    const region = live();
    if (event.detail.elt !== region) return;
    const waits = failures > 1 && Math.random() > 1 / failures;
    if (paused || document.hidden || waits || region.contains(document.activeElement)) {
      event.preventDefault();
    }
  });

  document.addEventListener("htmx:afterRequest", (event) => {
    if (event.detail.elt !== live()) return;
    failures = event.detail.successful ? 0 : failures + 1;
    if (failures) status(`Not updating (${failures} failed). Numbers may be old.`);
    else if (!paused) status(live().querySelector("[data-says]")?.dataset.says ?? "");
  });

  const button = document.querySelector("[data-pause]");
  if (button) button.hidden = false;
})();
