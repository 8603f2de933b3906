"""Why a forward failed, and what would fit."""
