"""Money in millionths of a dollar: whole numbers add up exactly. People read dollars."""

from decimal import ROUND_CEILING, Decimal

MICROS = 1_000_000


def micros(dollars: Decimal) -> int:
    """Dollars as millionths, rounded up: a cost is never told too low."""
    return int((dollars * MICROS).to_integral_value(ROUND_CEILING))


def dollars(micros: int) -> str:
    """Millionths as dollars, exactly, with at least two decimals."""
    whole, rest = divmod(micros, MICROS)
    decimals = f"{rest:06d}".rstrip("0")
    return f"{whole}.{decimals:0<2}"
