package mpa_test

import (
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

type printer struct{}

func (printer) ULPDU(b []byte) error {
	fmt.Printf("ULPDU %q\n", b)
	return nil
}

// Two FPDUs, sent one after the other and received in pieces of ten bytes, as TCP may deliver them.
func Example() {
	config := mpa.Config{CRC: true}
	s := mpa.NewSender(config)
	var stream []byte
	for _, ulpdu := range []string{"the first", "and the second one"} {
		fpdu := make([]byte, s.Size(len(ulpdu)))
		s.Begin(fpdu, len(ulpdu))
		s.Add([]byte(ulpdu))
		s.End()
		stream = append(stream, fpdu...)
	}
	fmt.Printf("% x\n", stream[:16])

	r := mpa.NewReceiver(config)
	for len(stream) > 0 {
		n := min(10, len(stream))
		if err := r.Feed(stream[:n], printer{}); err != nil {
			fmt.Println(err)
			return
		}
		stream = stream[n:]
	}
	// Output:
	// 00 09 74 68 65 20 66 69 72 73 74 00 c1 1e 5b 08
	// ULPDU "the first"
	// ULPDU "and the second one"
}

// A request for CRCs, by a program that answers 16 READs at a time and requests up to 8. It will
// send first, a WRITE of 0 bytes.
func ExampleFrame() {
	f := mpa.Frame{CRC: true, Revision: mpa.Revision2, PrivateData: []byte("hello"),
		HasEnhanced: true, Enhanced: mpa.Enhanced{PeerToPeer: true, RDMAWrite: true, IRD: 16, ORD: 8}}
	b := make([]byte, f.Len())
	if _, err := f.Encode(b); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%q\n", b)
	got, n, err := mpa.Parse(b)
	fmt.Printf("reply %t, CRC %t, IRD %d, ORD %d, private data %q, %d bytes, %v\n", got.Reply, got.CRC, got.Enhanced.IRD,
		got.Enhanced.ORD, got.PrivateData, n, err)
	// Output:
	// "MPA ID Req FrameP\x02\x00\t\x80\x10\x80\bhello"
	// reply false, CRC true, IRD 16, ORD 8, private data "hello", 29 bytes, <nil>
}
