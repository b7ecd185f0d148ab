package iwarp_test

// Enhanced connection establishment.
var rfc6581 = []requirement{
	{"5", 1, "an initiator sends no FPDU before the RTR indication", by("iwarptransport.TestRTR"),
		seen("INIT-RTR-WRITE", "INIT-RTR-READ", "INIT-RTR-EMPTY")},

	{"6", 1, "reserved bits are sent as zero", by("mpa.TestFrames", "iwarptransport.TestReservedBits"),
		seen("MPA-REPLY-RESERVED", "MPA-REPLY-RESERVED-SET", "INIT-RESERVED")},
	{"6", 1, "and not checked", by("mpa.TestFrames", "iwarptransport.TestReservedBits"),
		seen("MPA-REQUEST-RESERVED", "INIT-REPLY-RESERVED")},
	{"6", 1, "the revision is 2 if the frame is enhanced", by("mpa.TestFrames", "mpa.TestInvalidFramesAreNotEncoded"),
		seen("INIT-REVISION", "ENH-REVISION")},
	{"6", 1, "revision 1 is accepted still", by("iwarptransport.TestRevision1"), seen("MPA-REPLY-REVISION1")},
	{"6", 1, "with S set, private data begin with enhanced data", by("mpa.TestFrames", "mpa.TestBadFrames"),
		seen("ENH-SHORT", "ENH-PRIVATE-REPLY", "ENH-PRIVATE-REQUEST")},

	{"7", 7, "session control chunks", sctp, sctpOutside},

	{"9", 1, "enhanced data are big endian, IRD and ORD 14 bits", by("mpa.TestFrames", "rdmap.TestCaptures"),
		seen("ENH-IRD", "ENH-ORD", "INIT-IRD", "INIT-ORD")},

	{"9.1", 1, "both sides report the peer's IRD and ORD to the ULP", by("iwarptransport.TestIRDORD"),
		seen("ENH-ULP-IRD", "ENH-ULP-ORD", "INIT-REPLY-IRD", "INIT-REPLY-ORD")},
	{"9.1", 1, "a responder's ORD is at most the initiator's IRD", by("iwarptransport.TestIRDORD"), seen("ENH-ORD-MOST")},
	{"9.1", 1, "a connection refused for that has Terminate code 6", by("iwarptransport.TestIRDORD", "rdmap.TestCauses"), refusal},
	{"9.1", 1, "an initiator's IRD is at least the responder's ORD, its ORD at most the responder's IRD", by("iwarptransport.TestIRDORD"),
		seen("INIT-IRD-INSUFFICIENT", "INIT-ORD-KEPT")},
	{"9.1", 1, "an initiator that cannot terminates", by("iwarptransport.TestIRDORD"), seen("INIT-IRD-INSUFFICIENT")},
	{"9.1", 1, "with code 6", by("iwarptransport.TestIRDORD", "rdmap.TestCauses"), seen("INIT-IRD-INSUFFICIENT")},
	{"9.1", 1, "the initiator's ULP has the responder's IRD and ORD, accepted or rejected",
		by("iwarptransport.TestIRDORD", "iwarptransport.TestReject"),
		seen("INIT-REPLY-IRD", "INIT-REPLY-ORD")},
	{"9.1", 1, "ORD 0x3fff asked: the responder keeps its IRD and says 0x3fff", by("iwarptransport.TestNoNegotiation"),
		seen("ENH-ORD-ANY")},
	{"9.1", 1, "IRD 0x3fff answered: the initiator keeps its ORD", by("iwarptransport.TestNoNegotiation"), seen("INIT-IRD-ANY")},
	{"9.1", 1, "IRD 0x3fff asked: the responder keeps its ORD and says 0x3fff", by("iwarptransport.TestNoNegotiation"),
		seen("ENH-IRD-ANY")},
	{"9.1", 1, "ORD 0x3fff answered: the initiator keeps its IRD", by("iwarptransport.TestNoNegotiation"), seen("INIT-ORD-ANY")},

	{"9.2", 1, "peer-to-peer: the initiator sets A", by("iwarptransport.TestRTR"), seen("INIT-RTR-OFFERED")},
	{"9.2", 1, "and B, C, D as it has them", by("iwarptransport.TestRTR"), seen("INIT-RTR-OFFERED")},
	{"9.2", 1, "a responder has at least one kind of RTR", by("iwarptransport.TestRTR"), seen("ENH-RTR-SOME", "ENH-RTR-NONE")},
	{"9.2", 1, "it answers A with A", by("iwarptransport.TestRTR"), seen("ENH-A")},
	{"9.2", 1, "and with at least one kind of those asked for that it has", by("iwarptransport.TestRTR"), seen("ENH-RTR-SOME")},
	{"9.2", 1, "or else one that it has", by("iwarptransport.TestRTR"), seen("ENH-RTR-NONE")},
	{"9.2", 1, "an initiator sends an RTR of an agreed kind", by("iwarptransport.TestRTR"),
		seen("INIT-RTR-WRITE", "INIT-RTR-READ", "INIT-RTR-EMPTY")},
	{"9.2", 1, "or terminates", by("iwarptransport.TestRTR"), seen("INIT-RTR-NONE")},
	{"9.2", 1, "with code 7", by("iwarptransport.TestRTR", "rdmap.TestCauses"), seen("INIT-RTR-NONE")},
	{"9.2", 1, "client and server: the initiator clears A", by("iwarptransport.TestClientServer"), client},
	{"9.2", 1, "and so does the responder", by("iwarptransport.TestClientServer"), seen("ENH-CLIENT")},
	{"9.2", 1, "A clear: B, C, D are clear", by("iwarptransport.TestClientServer"), seen("ENH-CLIENT-RTR")},
	{"9.2", 1, "and ignored", by("iwarptransport.TestClientServer"), seen("ENH-CLIENT-RTR-IGNORED")},

	{"9.3", 1, "any other local error terminates with code 5", by("iwarptransport.TestSetupLocalError", "rdmap.TestCauses"), fault},

	{"10", 1, "an initiator that wants none of it sends no enhanced frame", by("iwarptransport.TestRevision1"), seen("INIT-PLAIN")},
	{"10", 1, "a responder accepts frames that are not enhanced", by("iwarptransport.TestRevision1"), seen("MPA-REPLY-PLAIN")},
	{"10", 1, "it answers an enhanced frame with one", by("iwarptransport.TestIRDORD"), seen("ENH-REPLY")},
	{"10", 1, "it answers another with another", by("iwarptransport.TestRevision1"), seen("MPA-REPLY-PLAIN")},
	{"10", 1, "a responder that knows no enhanced frames closes", none("SoftRNIC knows them"), old},
}
