package wire

import "fmt"

// Opcode is the BTH's operation code: the transport service in the upper three bits, the operation
// in the lower five (IBTA Vol 1 §9.2.1, table 38).
type Opcode uint8

// Transport is the transport service that an opcode belongs to.
type Transport uint8

// The services that have opcodes here. A CNP's code belongs to none of them.
const (
	RC  Transport = 0
	UC  Transport = 1
	UD  Transport = 3
	XRC Transport = 5 // the codes of RC, with this service in their upper bits
)

// Transport is the upper three bits.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// Reliable connection.
const (
	RCSendFirst          Opcode = 0x00
	RCSendMiddle         Opcode = 0x01
	RCSendLast           Opcode = 0x02
	RCSendLastImm        Opcode = 0x03
	RCSendOnly           Opcode = 0x04
	RCSendOnlyImm        Opcode = 0x05
	RCWriteFirst         Opcode = 0x06
	RCWriteMiddle        Opcode = 0x07
	RCWriteLast          Opcode = 0x08
	RCWriteLastImm       Opcode = 0x09
	RCWriteOnly          Opcode = 0x0a
	RCWriteOnlyImm       Opcode = 0x0b
	RCReadRequest        Opcode = 0x0c
	RCReadResponseFirst  Opcode = 0x0d
	RCReadResponseMiddle Opcode = 0x0e
	RCReadResponseLast   Opcode = 0x0f
	RCReadResponseOnly   Opcode = 0x10
	RCAck                Opcode = 0x11
	RCAtomicAck          Opcode = 0x12
	RCCmpSwap            Opcode = 0x13
	RCFetchAdd           Opcode = 0x14
	RCSendLastInv        Opcode = 0x16
	RCSendOnlyInv        Opcode = 0x17
	RCFlush              Opcode = 0x1c
	RCAtomicWrite        Opcode = 0x1d
)

// Unreliable connection.
const (
	UCSendFirst    Opcode = 0x20
	UCSendMiddle   Opcode = 0x21
	UCSendLast     Opcode = 0x22
	UCSendLastImm  Opcode = 0x23
	UCSendOnly     Opcode = 0x24
	UCSendOnlyImm  Opcode = 0x25
	UCWriteFirst   Opcode = 0x26
	UCWriteMiddle  Opcode = 0x27
	UCWriteLast    Opcode = 0x28
	UCWriteLastImm Opcode = 0x29
	UCWriteOnly    Opcode = 0x2a
	UCWriteOnlyImm Opcode = 0x2b
)

// Unreliable datagram, and the congestion notification packet (IBTA A17.9.3).
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81
)

// String is the opcode's name as tshark and the tables of the standard have it, shortened.
func (o Opcode) String() string {
	if s := opcodes[o].name; s != "" {
		return s
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// Info tells what an opcode means and which headers follow the BTH.
func (o Opcode) Info() Info { return opcodes[o].info }

// Info is the properties of an opcode.
type Info struct {
	flags  flags
	header uint8
}

// Known: the opcode is one of this package's constants. For any other nothing else is true, and
// HeaderLen is BTHLen.
func (i Info) Known() bool { return i.flags&known != 0 }

// Request goes from requester to responder. A CNP is neither Request nor Response.
func (i Info) Request() bool { return i.flags&request != 0 }

// Response goes from responder to requester: acknowledgements and READ responses.
func (i Info) Response() bool { return i.flags&response != 0 }

// First packet of a message; an Only packet is First and Last.
func (i Info) First() bool { return i.flags&first != 0 }

// Last packet of a message; an Only packet is First and Last.
func (i Info) Last() bool { return i.flags&last != 0 }

// Only is First and Last.
func (i Info) Only() bool { return i.flags&only == only }

// Send: part of a SEND.
func (i Info) Send() bool { return i.flags&send != 0 }

// Write: part of an RDMA WRITE.
func (i Info) Write() bool { return i.flags&write != 0 }

// Read: an RDMA READ request, or one of its responses.
func (i Info) Read() bool { return i.flags&read != 0 }

// Atomic: an atomic request, or its acknowledgement.
func (i Info) Atomic() bool { return i.flags&atomic != 0 }

// Flush: a FLUSH request.
func (i Info) Flush() bool { return i.flags&flush != 0 }

// AtomicWrite: an ATOMIC WRITE request.
func (i Info) AtomicWrite() bool { return i.flags&atomicWrite != 0 }

// Answered: of a request, that it has a response of its own, which takes one of the responder's
// resources.
func (i Info) Answered() bool { return i.flags&(read|atomic|flush|atomicWrite) != 0 }

// HasRETH and the methods below tell which extension headers follow the BTH.
func (i Info) HasRETH() bool { return i.flags&hasRETH != 0 }

// HasAETH: an AETH follows.
func (i Info) HasAETH() bool { return i.flags&hasAETH != 0 }

// HasAtomicETH: an AtomicETH follows.
func (i Info) HasAtomicETH() bool { return i.flags&hasAtomicETH != 0 }

// HasAtomicAckETH: an AtomicAckETH follows the AETH.
func (i Info) HasAtomicAckETH() bool { return i.flags&hasAtomicAckETH != 0 }

// HasImmDt: immediate data follow.
func (i Info) HasImmDt() bool { return i.flags&hasImmDt != 0 }

// HasIETH: an rkey to invalidate follows.
func (i Info) HasIETH() bool { return i.flags&hasIETH != 0 }

// HasXRCETH: an XRCETH follows.
func (i Info) HasXRCETH() bool { return i.flags&hasXRCETH != 0 }

// HasFETH: an FETH follows.
func (i Info) HasFETH() bool { return i.flags&hasFETH != 0 }

// HasDETH: a DETH follows.
func (i Info) HasDETH() bool { return i.flags&hasDETH != 0 }

// HasPayload: a payload, perhaps of zero bytes, follows the headers.
func (i Info) HasPayload() bool { return i.flags&hasPayload != 0 }

// HeaderLen is the number of bytes of the BTH and its extensions.
func (i Info) HeaderLen() int { return int(i.header) }

type flags uint32

const (
	known flags = 1 << iota
	request
	response
	first
	last
	send
	write
	read
	atomic
	flush
	atomicWrite
	hasRETH
	hasAETH
	hasAtomicETH
	hasAtomicAckETH
	hasImmDt
	hasIETH
	hasDETH
	hasFETH
	hasXRCETH
	hasPayload

	only = first | last
)

type opcode struct {
	name string
	info Info
}

var opcodes = table()

func table() (t [256]opcode) {
	for o := range t {
		t[o].info.header = BTHLen
	}
	set := func(o Opcode, name string, f flags) {
		n := BTHLen
		for _, x := range []struct {
			has flags
			len int
		}{
			{hasRETH, RETHLen}, {hasAETH, AETHLen}, {hasAtomicETH, AtomicETHLen}, {hasAtomicAckETH, AtomicAckETHLen},
			{hasImmDt, ImmDtLen}, {hasIETH, IETHLen}, {hasDETH, DETHLen},
			{hasFETH, FETHLen},
			{hasXRCETH, XRCETHLen},
		} {
			if f&x.has != 0 {
				n += x.len
			}
		}
		t[o] = opcode{name, Info{known | f, uint8(n)}}
	}

	// SEND and WRITE have the same twelve opcodes in both connected services.
	for _, service := range []struct {
		name string
		base Opcode
	}{{"RC", RCSendFirst}, {"UC", UCSendFirst}} {
		for o, x := range []struct {
			name  string
			flags flags
		}{
			{"SEND First", send | first},
			{"SEND Middle", send},
			{"SEND Last", send | last},
			{"SEND Last with Immediate", send | last | hasImmDt},
			{"SEND Only", send | only},
			{"SEND Only with Immediate", send | only | hasImmDt},
			{"WRITE First", write | first | hasRETH},
			{"WRITE Middle", write},
			{"WRITE Last", write | last},
			{"WRITE Last with Immediate", write | last | hasImmDt},
			{"WRITE Only", write | only | hasRETH},
			{"WRITE Only with Immediate", write | only | hasRETH | hasImmDt},
		} {
			set(service.base+Opcode(o), service.name+" "+x.name, request|hasPayload|x.flags)
		}
	}
	set(RCSendLastInv, "RC SEND Last with Invalidate", request|send|last|hasIETH|hasPayload)
	set(RCSendOnlyInv, "RC SEND Only with Invalidate", request|send|only|hasIETH|hasPayload)
	set(RCReadRequest, "RC READ Request", request|read|only|hasRETH)
	set(RCReadResponseFirst, "RC READ Response First", response|read|first|hasAETH|hasPayload)
	set(RCReadResponseMiddle, "RC READ Response Middle", response|read|hasPayload)
	set(RCReadResponseLast, "RC READ Response Last", response|read|last|hasAETH|hasPayload)
	set(RCReadResponseOnly, "RC READ Response Only", response|read|only|hasAETH|hasPayload)
	set(RCAck, "RC Acknowledge", response|only|hasAETH)
	set(RCAtomicAck, "RC ATOMIC Acknowledge", response|atomic|only|hasAETH|hasAtomicAckETH)
	set(RCCmpSwap, "RC CmpSwap", request|atomic|only|hasAtomicETH)
	set(RCFetchAdd, "RC FetchAdd", request|atomic|only|hasAtomicETH)
	set(RCFlush, "RC FLUSH", request|flush|only|hasFETH|hasRETH)
	set(RCAtomicWrite, "RC ATOMIC WRITE", request|atomicWrite|only|hasRETH|hasPayload)
	for o := RCSendFirst; o <= RCAtomicWrite; o++ {
		if rc := t[o]; rc.info.Known() {
			f := rc.info.flags
			if rc.info.Request() {
				f |= hasXRCETH
			}
			set(Opcode(XRC)<<5|o, "X"+rc.name, f)
		}
	}
	set(UDSendOnly, "UD SEND Only", request|send|only|hasDETH|hasPayload)
	set(UDSendOnlyImm, "UD SEND Only with Immediate", request|send|only|hasDETH|hasImmDt|hasPayload)
	set(CNP, "CNP", hasPayload)
	return t
}
