package responder

import _ "embed"

// Pyverbs is a responder for any device that libibverbs has, as a Python script.
//
//go:embed responder.py
var Pyverbs string
