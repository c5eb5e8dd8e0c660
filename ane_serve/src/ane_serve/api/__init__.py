"""Requests, answers and errors in the forms of OpenAI's API and Anthropic's.

References: https://platform.openai.com/docs/api-reference, https://docs.anthropic.com/en/api
"""
