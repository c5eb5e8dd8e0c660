"""OpenAI's words: what is asked, what is answered, what is refused.

Reference: https://platform.openai.com/docs/api-reference
"""
