package linktest_test

import (
	"fmt"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/pipe"
)

// Two frames through a link, in the place of which a test has its own: it shows what arrives.
func Example() {
	lan := new(pipe.Switch)
	a, b := lan.Port(), lan.Port()
	defer a.Close()
	defer b.Close()
	received := linktest.Receive(b)

	plain := linktest.Plain(b.MAC(), a.MAC(), 50, "hello")
	super := linktest.Superframe(b.MAC(), a.MAC(), false, 3, 1024)
	n, err := a.Write([]link.Frame{plain, super})
	fmt.Println(n, "frames,", err)

	f := <-received
	fmt.Printf("%d bytes, %q\n", f.Len(), f.Data[link.EthernetHeaderLen:][:5])
	f = <-received
	fmt.Printf("%d bytes, uncut: %t, segments of %d\n", f.Len(), f.Segmentation == link.UDP, f.SegmentSize)
	// Output:
	// 2 frames, <nil>
	// 64 bytes, "hello"
	// 3114 bytes, uncut: true, segments of 1024
}
