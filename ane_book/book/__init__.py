"""What only the pages of the book import: figures, diagrams, fits, published numbers."""
