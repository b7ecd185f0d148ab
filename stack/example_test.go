package stack_test

import (
	"fmt"
	"log"
	"net/netip"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// describe works with any implementation of a host.
func describe(host stack.Network) {
	for _, nic := range host.NICs() {
		src, direct, err := nic.Source(netip.MustParseAddr("10.0.0.7"))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: %v, MTU %d, state %v\n", nic.Name(), nic.MAC(), nic.MTU(), nic.State())
		fmt.Printf("route to 10.0.0.7: from %v, direct: %t\n", src, direct)
	}
}

func ExampleNetwork() {
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	describe(host)
	// Output:
	// pipe0: 02:53:52:00:00:01, MTU 4200, state up
	// route to 10.0.0.7: from 10.0.0.1, direct: true
}
