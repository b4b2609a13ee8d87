"""An audit is planned, prepared, and executed here: its model, images, attacks, cost, and result."""
