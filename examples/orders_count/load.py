"""Sends created orders: `python -m examples.orders_count.load --bootstrap host:port`."""

from examples.orders_created.orders import load

main = load()

if __name__ == "__main__":
    main()
