package packet_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
)

// An RDMA device that shares the interface eth0 with the kernel's stack. It needs CAP_NET_RAW, and
// an IP address that the kernel does not use.
func ExampleOpen() {
	l, err := packet.Open("eth0", nil)
	if err != nil {
		log.Fatal(err)
	}
	// Owns the link.
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.0.0.9/24"}, Gateways: []string{"10.0.0.254"}})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	fmt.Println(dev.GIDTable(1))
}
