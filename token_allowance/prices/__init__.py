"""List prices bundled with the ``genai-prices`` package, kept as dated rows of our own."""
