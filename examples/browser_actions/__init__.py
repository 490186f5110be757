"""What browsers do: counts, hopping windows, a left join of streams, a store of its own."""
