package capture_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"net/netip"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

// The packets of a ping, as host A sees them. A program that writes to a file calls Create.
func ExampleNew() {
	var lan pipe.Switch
	var file bytes.Buffer
	captured, err := capture.New(lan.Port(), &file)
	check(err)
	a, err := netstack.New(captured, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	check(err)
	b, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	check(err)
	_, err = a.Ping(context.Background(), netip.MustParseAddr("10.0.0.2"))
	check(err)
	check(a.Close()) // closes the link, which completes the capture
	check(b.Close())

	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	check(err)
	for {
		frame, _, err := r.ReadPacketData()
		if err == io.EOF {
			break
		}
		check(err)
		if protocol := frame[23]; frame[12] == 0x08 && frame[13] == 0x00 && protocol == 1 {
			fmt.Printf("ICMP type %d, %v to %v\n", frame[34], netip.AddrFrom4([4]byte(frame[26:])), netip.AddrFrom4([4]byte(frame[30:])))
		}
	}
	// Output:
	// ICMP type 8, 10.0.0.1 to 10.0.0.2
	// ICMP type 0, 10.0.0.2 to 10.0.0.1
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
