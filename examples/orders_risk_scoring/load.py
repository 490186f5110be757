"""Sends created orders: `python -m examples.orders_risk_scoring.load --bootstrap host:port`.

Some have no positive amount, and some are none: no value, not JSON, no customer, no amount.
"""

from examples.orders_created.orders import load

main = load()

if __name__ == "__main__":
    main()
