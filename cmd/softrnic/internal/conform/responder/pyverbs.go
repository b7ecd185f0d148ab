package responder

import _ "embed"

// Pyverbs is a Python script: a responder for any device of libibverbs.
//
//go:embed responder.py
var Pyverbs string
