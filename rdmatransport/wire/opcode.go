package wire

import "fmt"

// Opcode is the BTH's operation code: the transport service in the upper three bits, the operation
// in the lower five (IBTA Vol 1 §9.2.1, table 38).
type Opcode uint8

// Transport is the transport service of an opcode.
type Transport uint8

// The services with opcodes here. The CNP opcode belongs to none of them.
const (
	RC  Transport = 0
	UC  Transport = 1
	UD  Transport = 3
	XRC Transport = 5 // the codes of RC with this service in the upper bits
)

// Transport returns the upper three bits.
func (o Opcode) Transport() Transport { return Transport(o >> 5) }

// Opcodes of reliable connections (IBTA Vol 1 §9.2.1; FLUSH and ATOMIC WRITE are A19's).
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

// Opcodes of unreliable connections.
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

// Opcodes of unreliable datagrams, and of the congestion notification packet (IBTA A17.9.3).
const (
	UDSendOnly    Opcode = 0x64
	UDSendOnlyImm Opcode = 0x65
	CNP           Opcode = 0x81
)

// String returns the opcode's name as in tshark and in the standard's tables, shortened.
func (o Opcode) String() string {
	if s := opcodes[o].name; s != "" {
		return s
	}
	return fmt.Sprintf("opcode %#02x", uint8(o))
}

// Info returns the properties of an opcode.
func (o Opcode) Info() Info { return opcodes[o].info }

// Info has the properties of an opcode: its meaning, and the headers that follow the BTH.
type Info struct {
	flags  flags
	header uint8
}

// Known reports whether the opcode is one of this package's constants. For any other, all other
// methods return false, and HeaderLen returns BTHLen.
func (i Info) Known() bool { return i.flags&known != 0 }

// Request reports whether the packet goes from requester to responder. A CNP is neither Request nor
// Response.
func (i Info) Request() bool { return i.flags&request != 0 }

// Response reports whether the packet goes from responder to requester: acknowledgements and READ
// responses.
func (i Info) Response() bool { return i.flags&response != 0 }

// First reports whether the packet is the first of a message. An Only packet is First and Last.
func (i Info) First() bool { return i.flags&first != 0 }

// Last reports whether the packet is the last of a message. An Only packet is First and Last.
func (i Info) Last() bool { return i.flags&last != 0 }

// Only reports whether the packet is First and Last.
func (i Info) Only() bool { return i.flags&only == only }

// Send reports whether the packet is part of a SEND.
func (i Info) Send() bool { return i.flags&send != 0 }

// Write reports whether the packet is part of an RDMA WRITE.
func (i Info) Write() bool { return i.flags&write != 0 }

// Read reports whether the packet is an RDMA READ request or response.
func (i Info) Read() bool { return i.flags&read != 0 }

// Atomic reports whether the packet is an atomic request or its acknowledgement.
func (i Info) Atomic() bool { return i.flags&atomic != 0 }

// Flush reports whether the packet is a FLUSH request.
func (i Info) Flush() bool { return i.flags&flush != 0 }

// AtomicWrite reports whether the packet is an ATOMIC WRITE request.
func (i Info) AtomicWrite() bool { return i.flags&atomicWrite != 0 }

// Answered reports whether a request has a response of its own, which takes one of the responder's
// resources.
func (i Info) Answered() bool { return i.flags&(read|atomic|flush|atomicWrite) != 0 }

// HasRETH reports whether a RETH follows the BTH.
func (i Info) HasRETH() bool { return i.flags&hasRETH != 0 }

// HasAETH reports whether an AETH follows.
func (i Info) HasAETH() bool { return i.flags&hasAETH != 0 }

// HasAtomicETH reports whether an AtomicETH follows.
func (i Info) HasAtomicETH() bool { return i.flags&hasAtomicETH != 0 }

// HasAtomicAckETH reports whether an AtomicAckETH follows the AETH.
func (i Info) HasAtomicAckETH() bool { return i.flags&hasAtomicAckETH != 0 }

// HasImmDt reports whether immediate data follows.
func (i Info) HasImmDt() bool { return i.flags&hasImmDt != 0 }

// HasIETH reports whether an rkey to invalidate follows.
func (i Info) HasIETH() bool { return i.flags&hasIETH != 0 }

// HasXRCETH reports whether an XRCETH follows.
func (i Info) HasXRCETH() bool { return i.flags&hasXRCETH != 0 }

// HasFETH reports whether a FETH follows.
func (i Info) HasFETH() bool { return i.flags&hasFETH != 0 }

// HasDETH reports whether a DETH follows.
func (i Info) HasDETH() bool { return i.flags&hasDETH != 0 }

// HasPayload reports whether a payload, perhaps of zero bytes, follows the headers.
func (i Info) HasPayload() bool { return i.flags&hasPayload != 0 }

// HeaderLen returns the length of the BTH and its extensions, in bytes.
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
			{hasRETH, rethLen}, {hasAETH, AETHLen}, {hasAtomicETH, atomicETHLen}, {hasAtomicAckETH, atomicAckETHLen},
			{hasImmDt, immDtLen}, {hasIETH, iethLen}, {hasDETH, DETHLen},
			{hasFETH, fethLen},
			{hasXRCETH, xrcethLen},
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
