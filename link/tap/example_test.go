package tap_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
)

// An RDMA device on a TAP interface, which Open creates and adds to bridge br0. It needs root and
// the bridge.
func ExampleOpen() {
	l, err := tap.Open("rnic0", &tap.Config{Bridge: "br0", MTU: 4200})
	if err != nil {
		log.Fatal(err)
	}
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.0.0.9/24"}}) // owns the link
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close() // also removes the interface
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	fmt.Println(dev.GIDTable(1))
}
