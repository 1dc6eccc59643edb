"""What a model is: a Transformer whose prediction comes apart exactly into its layers."""
