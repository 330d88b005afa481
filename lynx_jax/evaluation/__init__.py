"""What a policy costs a model: quality lost against experts saved."""
