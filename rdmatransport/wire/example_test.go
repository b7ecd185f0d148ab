package wire_test

import (
	"encoding/binary"
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// udp4 returns an IPv4 and a UDP header for n bytes of RoCEv2.
func udp4(n int) []byte {
	h := []byte{
		0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, // IPv4, DF
		0xc0, 0, 0x12, 0xb7, 0, 0, 0, 0, // UDP to port 4791
	}
	binary.BigEndian.PutUint16(h[2:], uint16(len(h)+n))
	binary.BigEndian.PutUint16(h[24:], uint16(8+n))
	return h
}

// A WRITE of five bytes in one packet, from the BTH on, and what its receiver reads.
func Example() {
	p := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.RCWriteOnly, PKey: wire.DefaultPKey, DestQP: 0x12, PSN: 7, AckReq: true, Pad: wire.PadLen(5)},
		RETH:    wire.RETH{Addr: 0x1000, RKey: 0xabcd, Length: 5},
		Payload: []byte("hello"),
	}
	b := make([]byte, p.Size())
	header := udp4(len(b))
	p.Encode(header, b)
	fmt.Printf("BTH     % x\n", b[:12])
	fmt.Printf("RETH    % x\n", b[12:28])
	fmt.Printf("payload %q, %d bytes of pad, ICRC % x\n", b[28:33], p.Pad, b[36:])

	var got wire.Packet
	err := got.Parse(b)
	fmt.Printf("ICRC %t, %v to QP %#x, %d bytes at %#x of R_Key %#x, %v\n", wire.CheckICRC(header, b), got.Opcode, got.DestQP,
		got.RETH.Length, got.RETH.Addr, got.RETH.RKey, err)
	// Output:
	// BTH     0a 30 ff ff 00 00 00 12 80 00 00 07
	// RETH    00 00 00 00 00 00 10 00 00 00 ab cd 00 00 00 05
	// payload "hello", 3 bytes of pad, ICRC 0f bc 09 78
	// ICRC true, RC WRITE Only to QP 0x12, 5 bytes at 0x1000 of R_Key 0xabcd, <nil>
}

// A program that reads packets checks the ICRC first, and then looks at the headers of the opcode.
func ExamplePacket_Parse() {
	ack := wire.Packet{
		BTH:  wire.BTH{Opcode: wire.RCAck, PKey: wire.DefaultPKey, DestQP: 0x34, PSN: 7},
		AETH: wire.AETH{Syndrome: wire.NakPSNSeq, MSN: 3},
	}
	b := make([]byte, ack.Size())
	header := udp4(len(b))
	ack.Encode(header, b)

	if !wire.CheckICRC(header, b) {
		fmt.Println("wrong ICRC")
		return
	}
	var p wire.Packet
	if err := p.Parse(b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%v to QP %#x, PSN %d", p.Opcode, p.DestQP, p.PSN)
	if p.Opcode.Info().HasAETH() {
		fmt.Printf(", syndrome %#x, MSN %d", p.AETH.Syndrome, p.AETH.MSN)
	}
	fmt.Println()
	// Output: RC Acknowledge to QP 0x34, PSN 7, syndrome 0x60, MSN 3
}
