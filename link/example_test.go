package link_test

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

// A superframe is cut into the packets that it is on the wire.
func ExampleCutter_Packets() {
	to, from := []byte{2, 0, 0, 0, 0, 2}, []byte{2, 0, 0, 0, 0, 1}
	f := linktest.Superframe(to, from, false, 3, 1024) // UDP over IPv4, 3 segments of 1024 bytes
	fmt.Println("one frame of", f.Len(), "bytes, whose headers are", f.HeaderLen)
	var c link.Cutter
	for p := range c.Packets(&f) {
		fmt.Println("a packet of", len(p))
	}
	// Output:
	// one frame of 3114 bytes, whose headers are 42
	// a packet of 1066
	// a packet of 1066
	// a packet of 1066
}
