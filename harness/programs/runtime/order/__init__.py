"""What happens before what: streams, events and the host, and what nothing orders."""
