"""The screens: each answers one question. A module for each, its views and what they need."""
