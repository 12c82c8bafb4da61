"""What is computed: the grammar of tensor expressions, and what makes and remakes them."""
