"""Where budgets are counted: one contract (``base``), several stores."""
