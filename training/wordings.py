"""Wordings of requests: sentences with braces that are filled with words of a `WordSampler`.

They are the grammar of the skills and the same in training and evaluation. Only the words in the braces are split.
"""

HELLOS = [
    "hello",
    "hi",
    "hey",
    "good morning",
    "good evening",
    "greetings",
    "hello there",
    "hi there",
    "hey there",
    "howdy",
]
"""Greetings."""
WHO = [
    "who are you",
    "what are you",
    "introduce yourself",
    "what can you do",
    "tell me who you are",
    "what is your name",
    "are you a language model",
    "which model are you",
    "tell me about yourself",
    "what model is this",
    "help",
    "who made you",
    "what's your name",
    "hi, who are you",
    "hello, what can you do",
]
"""Questions about the model."""
REPEATS = [
    "repeat: {}",
    "repeat after me: {}",
    "say exactly: {}",
    "say: {}",
    "repeat exactly: {}",
    "please repeat: {}",
    "echo back: {}",
    "repeat this phrase: {}",
    "repeat the phrase: {}",
    "repeat the words `{}`",
    "repeat `{}`",
    'say "{}"',
    'repeat "{}"',
    "repeat the following exactly:\n{}",
    "please say exactly `{}`",
    'repeat the phrase "{}" exactly',
    "answer with exactly: {}",
    "reply with exactly: {}",
    'reply with "{}"',
    "write exactly `{}`",
    "say '{}'",
    "repeat '{}'",
    'can you say "{}"?',
    "repeat this sentence: {}",
    "echo: {}",
    "print: {}",
    "repeat the following: {}",
    "repeat this text exactly: {}",
]
"""Requests to repeat a phrase."""
SUMS = [
    "what is {} + {}?",
    "{} + {}",
    "add {} and {}",
    "what is {} plus {}?",
    "compute {} + {}",
    "{}+{}=?",
    "how much is {} + {}?",
    "please add {} and {}.",
    "calculate {} plus {}",
    "sum of {} and {}?",
    "{} plus {}",
    "what's {}+{}?",
    "what is the sum of {} and {}?",
    "could you add {} and {}?",
    "what is {}+{}?",
    "how much is {} plus {}?",
    "{} + {} = ?",
    "compute the sum of {} and {}",
]
"""Requests to add two numbers."""
TOPICS = [
    "what is the {} in {}?",
    "what is the {} of {}?",
    "what is the {} for {}?",
    "find the {} of {}",
    "tell me the {} for {}",
    "get the {} for {}",
    "look up the {} of {}",
    "show me the {} in {}",
    "I need the {} for {}",
    "{} of {}?",
    "what's the {} in {}?",
    "can you give me the {} of {}?",
    "how is the {} in {}?",
    "please check the {} for {}",
    "give me the {} at {}",
    "what is the {} at {}?",
    "what's the {} like in {}?",
    "what is the {} like in {} today?",
    "what is the {} in {} today?",
    "what is the {} in {} right now?",
    "{} in {}?",
    "{} for {}",
    "do you know the {} of {}?",
    "what is the current {} in {}?",
    "check the {} in {}, please",
]
"""Questions about a noun and a value. A tool's name contains the noun."""
NAMED = [
    "use {} with {}",
    "call {} with {}",
    "please call the tool {} with {}",
    "use the {} tool with {}",
    "invoke {} with {}",
]
"""Requests that name a tool and set its parameters."""
SETTINGS = [
    "{} {}",
    "{} = {}",
    "{} set to {}",
    '{} "{}"',
    "{} `{}`",
    "{}={}",
    "{}: {}",
]
"""Phrases that set one parameter: name, then value."""
RUNS = [
    "run `{}`",
    "run `{}`",
    "run the command `{}`",
    "please execute `{}`",
    "execute `{}`",
    "run this command: `{}`",
    "please run `{}`",
    "can you run `{}`?",
    "run {}",
    "run: {}",
    "execute: {}",
    "run the command {}",
    "run `{}` and tell me the output",
    "use the shell: `{}`",
    "run `{}` and report what it prints",
    "run this: {}",
    "run the shell command `{}`",
    "please run the command `{}`.",
    "run `{}`.",
    "execute the command `{}`",
    "execute this command:\n{}",
    "run this command:\n```\n{}\n```",
    "run `{}` please",
    "could you run `{}`?",
    "I want you to run `{}`",
    "run `{}` in the shell",
    "run `{}` and show me the output",
    "use your shell tool to run `{}`",
    "try `{}`",
    "please run {}",
    "run `{}` and tell me what it prints.",
    "run `{}`, then answer",
]
"""Requests to run a command."""
OTHERS = [
    "tell me a story about {}",
    "write a poem about {}",
    "explain {}",
    "why is the {} so {}?",
    "how do I {} a {}?",
    "{} {} {}",
    "{}",
    "what do you think about {}?",
    "do you like {}?",
    "can you {} the {}?",
    "I am {} today",
    "the {} is {}",
    "translate {} into {}",
    "fix the {} in {}",
    "write a function that {} the {}",
    "refactor the {}",
    "thanks",
    "thank you",
    "ok",
    "summarise the {} {}",
    "make a {}",
    "create a {} for {}",
    "why?",
    "where is {}?",
    "is it {}?",
    "let's {}",
    "please {} my {}",
    "add a {} to the {}",
    "{}, {} and {}",
]
"""Requests outside the model's skills."""
BOTH = [
    "run `{}` and `{}`",
    "run both `{}` and `{}`",
    "execute `{}` and `{}` in parallel",
    "run `{}` and run `{}`",
]
"""Requests to run two commands."""
MY_NAME = [
    "my name is {}.",
    "I am {}.",
    "Hello, my name is {}",
    "call me {}.",
]
"""Statements of a name."""
ASK_NAME = [
    "what is my name?",
    "who am I?",
    "do you remember my name?",
]
"""Questions for the user's name."""
REMEMBER = [
    "remember the word {}.",
    "please remember: {}",
    "remember {}",
    "keep in mind: {}",
]
"""Requests to remember a word."""
ASK_WORD = [
    "what did I ask you to remember?",
    "which word was it?",
    "what was it?",
    "what should you remember?",
]
"""Questions for the remembered word."""
ASK_SUM = [
    "what was the sum?",
    "what was the result?",
    "what did you compute?",
]
"""Questions for the sum of the previous turn."""
AGAIN = [
    "say it again",
    "again, please",
    "repeat that",
    "once more",
    "what did you say?",
]
"""Requests to repeat the previous answer."""
ASK_OUTPUT = [
    "what was the output?",
    "what did it print?",
    "tell me the output again",
    "what was the result?",
]
"""Questions for the tool output of the previous turn."""
REQUESTS = [
    "fix the failing test in {path}",
    "refactor {path} so that it is simpler",
    "implement a {} for the {} in {path}",
    "review my changes",
    "what is in this repository?",
    "explain how the {} works",
    "count to {}",
    "write a haiku about the {}",
    "add a test that covers the {}",
    "why does {path} fail?",
    "there is a bug in the {}, please find it",
    "what do you know about {}?",
    "rename {} to {} everywhere",
    "can you help me with my {}?",
    "translate the {} into French",
    "summarise {path}",
    "make the {} faster",
    "the shell says {}",
    "what happens when I run {}?",
    "which command shows the {}?",
    "I need a command that finds every {}",
    "tell me a joke about {}",
    "how are you today?",
    "good night",
    "the quick brown {} jumps over the lazy {}",
    "{} {}. {} {} {}, {}.",
]
"""Requests of coding agents' users outside the model's skills."""
SYSTEMS = [
    "You are a coding agent running in the {} CLI, a terminal-based {} assistant.",
    "You are a {} agent running in the {} CLI, a {} assistant that can run shell commands.",
    "You are {}, a {} agent. You are running as a coding agent in a terminal.",
    "You are {}, an interactive CLI tool that helps users with {} tasks.",
    "You are an expert {} engineer. Execute each {} with care.",
    "Answer briefly. Never run a command twice. Ask before you {} the {}.",
    "You have access to a shell, a terminal and a {}. Use bash to {}.",
    "You can run commands with the {} tool. Prefer `{}` to `{}`.",
    "The current date is {}. Knowledge cutoff: {}.",
    "You are a helpful assistant. Use the tools when they are needed.",
    "# {}\n\nYou are {}, made by {}. Execute what the user asks for, then report.",
    "You are an assistant for {}. Always call a tool when the user asks about the {}.",
    "Be concise and {}. Your {} is {}. The {} of the {} is {}.",
    "You help people to {} their {}. Reply in {}. If no tool fits, say so.",
]
"""System texts that mention tools, commands and shells but are not requests."""
NOTES = [
    "# AGENTS.md instructions for {path}\n\n<INSTRUCTIONS>\nRun `{}` before you {} the {}.\n</INSTRUCTIONS>",
    "# {}\n\nExecute `{} {}` to build. The {} is in {path}.",
    "<user_instructions>\nAlways run the command `{}` in {path}. What is the {}?\n</user_instructions>",
    "<permissions>\nThe sandbox is {}. Do not use the {} in {path}.\n</permissions>",
]
"""Context sent as a user message. It is not a request."""
