"""Requests, answers and errors in the form of OpenAI's API.

Reference: https://platform.openai.com/docs/api-reference
"""
