"""How many guesses each row is asked for: acceptance and costs as measured, and the policies that weigh them."""
