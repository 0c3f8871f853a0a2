"""/v1/embeddings, /score and /rerank: vectors of prompts, and how alike they are."""
