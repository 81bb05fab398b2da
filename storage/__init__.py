"""Everything durable, SQL included: nothing here runs in a nursery, opens a socket or knows a provider."""
