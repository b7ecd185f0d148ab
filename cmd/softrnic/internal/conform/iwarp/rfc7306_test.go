package iwarp_test

// Atomic operations and immediate data.
var rfc7306 = []requirement{
	{"4.1", 1, "RDMA version 1, the opcodes given, invalidate STag 0", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("REQ-ATOMIC", "REQ-IMM-QUEUE", "REQ-IMM-SE")},

	{"5", 1, "no two atomics at once in the same memory", by("memory.TestAtomics", "iwarp.TestAtomics"), several},
	{"5", 1, "FetchAdd and CmpSwap are both there", by("rdmap.TestFetchAdd", "rdmap.TestCmpSwap", "iwarp.TestAtomics"), seen("ATOMIC-ADD", "ATOMIC-SWAP")},
	{"5", 1, "responses are untagged, on queue 3", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("ATOMIC-QUEUE")},

	{"5.1.1", 1, "FetchAdd targets 8 aligned bytes", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN")},
	{"5.1.1", 1, "else it is an error", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN")},
	{"5.1.1", 1, "memory is not changed", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN")},
	{"5.1.1", 1, "the error is surfaced", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN")},
	{"5.1.1", 1, "and a Terminate sent", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN")},
	{"5.1.2", 1, "CmpSwap leaves the old value, or the masked new one", by("rdmap.TestCmpSwap", "iwarp.TestAtomics"), seen("ATOMIC-SWAP", "ATOMIC-SWAP-DIFFERENT", "ATOMIC-SWAP-MASK")},
	{"5.1.2", 1, "CmpSwap targets 8 aligned bytes", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN-SWAP")},
	{"5.1.2", 1, "else it is not performed", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN-SWAP")},
	{"5.1.2", 1, "memory is not changed", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN-SWAP")},
	{"5.1.2", 1, "the error is surfaced", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN-SWAP")},
	{"5.1.2", 1, "and a Terminate sent", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN-SWAP")},

	{"5.2", 1, "requests are on queue 1", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("REQ-ATOMIC", "ATOMIC-QUEUE0")},
	{"5.2", 1, "responses are on queue 3", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("ATOMIC-QUEUE")},

	{"5.2.1", 1, "all atomic codes are there", by("rdmap.TestAtomicRequest", "iwarp.TestAtomics"), seen("ATOMIC-ADD", "ATOMIC-SWAP")},
	{"5.2.1", 1, "the TO is that of 8 aligned bytes", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN", "ATOMIC-ALIGN-SWAP")},
	{"5.2.1", 2, "a request is untagged", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("REQ-ATOMIC")},
	{"5.2.1", 1, "a request takes one untagged buffer", by("iwarp.TestReadDepth"), seen("ATOMIC-HIDDEN")},
	{"5.2.1", 1, "the responder's RDMAP processes it", by("iwarp.TestAtomics"), seen("ATOMIC-ADD")},
	{"5.2.1", 1, "its ULP does not see it", by("iwarp.TestAtomics"), seen("ATOMIC-HIDDEN")},
	{"5.2.1", 1, "an unknown atomic code is an error", by("iwarp.TestRemoteErrors"), seen("ATOMIC-CODE")},
	{"5.2.1", 2, "a request is on the queue of read requests", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("REQ-ATOMIC", "REQ-ATOMIC-MSN", "ATOMIC-QUEUE0")},
	{"5.2.1", 1, "requests are sent in the order of submission", by("iwarp.TestOrder"), seen("REQ-ATOMIC-MSN", "REQ-ORDER")},
	{"5.2.1", 1, "and processed in the order in which they were sent", by("iwarp.TestOrder"), seen("ATOMIC-ORDER")},
	{"5.2.1", 1, "a valid request has a valid response", by("iwarp.TestAtomics"), seen("ATOMIC-ADD", "ATOMIC-IDENTIFIER")},

	{"5.2.2", 2, "a response is untagged", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("ATOMIC-QUEUE")},
	{"5.2.2", 2, "a response is on queue 3", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("ATOMIC-QUEUE")},
	{"5.2.2", 1, "the responder has buffers for all requests agreed on, reads and atomics", by("iwarp.TestReadDepth"), seen("READ-DEPTH")},
	{"5.2.2", 1, "the requester has buffers for all responses", by("iwarp.TestReadDepth"), local},
	{"5.2.2", 1, "the response is delivered to the ULP", by("iwarp.TestAtomics"), seen("REQ-ATOMIC-PLACED")},
	{"5.2.2", 1, "responses are sent in the order of the requests", by("iwarp.TestOrder"), seen("ATOMIC-ORDER")},

	{"5.3", 1, "atomic among all streams of the RNIC", by("iwarp.TestAtomicsAddUp", "memory.TestAtomicsAreAtomicToLocalCode"), several},

	{"5.4", 1, "the requester takes nothing for changed before the response", by("iwarp.TestOrder"), seen("REQ-ATOMIC-WAITS")},
	{"5.4", 1, "atomic within one RNIC", by("iwarp.TestAtomicsAddUp"), several},
	{"5.4", 1, "no request is processed before it is delivered", inOrder, tcp},
	{"5.4", 1, "no response is begun before the request is delivered", inOrder, tcp},
	{"5.4", 1, "an atomic completes when its response is delivered", by("iwarp.TestOrder"), seen("REQ-ATOMIC-WAITS")},
	{"5.4", 1, "requests are processed in the order of delivery", by("iwarp.TestOrder"), seen("ATOMIC-ORDER")},
	{"5.4", 1, "responses are sent in that order", by("iwarp.TestOrder"), seen("ATOMIC-ORDER")},

	{"6.3", 2, "immediate data are untagged", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("REQ-IMM-QUEUE")},
	{"6.3", 1, "they take one untagged buffer", by("iwarp.TestImmediateData"), seen("IMM-VALUE")},
	{"6.3", 1, "they are delivered in the order in which they were sent", by("iwarp.TestOrder", "iwarp.TestImmediateData"), seen("IMM-ORDER")},
	{"6.3", 1, "they are on queue 0", by("rdmap.TestOpcodes", "iwarp.TestWireFormat"), seen("REQ-IMM-QUEUE", "IMM-QUEUE1")},
	{"6.3", 1, "they are sent as 8 bytes", by("rdmap.TestImmediate", "iwarp.TestWireFormat"), seen("REQ-IMM-DATA")},
	{"6.3", 1, "they are sent in the order of submission", by("iwarp.TestOrder"), seen("REQ-IMM", "REQ-ORDER")},
	{"6.3", 1, "a receiver checks that they are 8 bytes", by("rdmap.TestLengths", "iwarp.TestRemoteErrors"), seen("IMM-LENGTH")},

	{"8.1", 1, "local errors with these messages send a Terminate", by("iwarp.TestLocalErrors", "iwarp.TestRemoteErrors"), fault},
	{"8.2", 1, "what follows is validated when they come", heading, items},
	{"8.2", 1, "DDP's fields", by("ddp.TestQueue", "iwarp.TestRemoteErrors"), seen("IMM-NO-BUFFER", "ATOMIC-BOUNDS")},
	{"8.2", 1, "the opcode", by("rdmap.TestControl", "iwarp.TestRemoteErrors"), seen("OPCODE-UNTAGGED", "ATOMIC-QUEUE0")},
	{"8.2", 1, "the version", by("rdmap.TestControl", "iwarp.TestRemoteErrors"), seen("RDMAP-VERSION-UNTAGGED")},
	{"8.2", 1, "more is validated of an atomic request", heading, items},
	{"8.2", 1, "that it targets 8 aligned bytes", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN", "ATOMIC-ALIGN-SWAP")},
	{"8.2", 1, "else the Terminate says a catastrophic error of the stream", by("iwarp.TestAtomicAlignment"), seen("ATOMIC-ALIGN", "ATOMIC-ALIGN-SWAP")},
}
