package link_test

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

// A superframe is cut into packets as they are sent on the wire.
func ExampleCutter_Packets() {
	to, from := []byte{2, 0, 0, 0, 0, 2}, []byte{2, 0, 0, 0, 0, 1}
	f := linktest.Superframe(to, from, false, 3, 1024) // UDP over IPv4, 3 segments of 1024 bytes
	fmt.Println("frame:", f.Len(), "bytes, headers:", f.HeaderLen)
	var c link.Cutter
	for p := range c.Packets(&f) {
		fmt.Println("packet:", len(p))
	}
	// Output:
	// frame: 3114 bytes, headers: 42
	// packet: 1066
	// packet: 1066
	// packet: 1066
}
