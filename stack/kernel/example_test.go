//go:build linux

package kernel_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
)

// An RDMA device on the machine's loopback, without privileges. For other machines omit Addr, or
// give one of this machine's addresses.
func Example() {
	host, err := kernel.New(&kernel.Config{Addrs: []string{"127.0.0.1"}})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	gid, err := dev.QueryGID(1, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(host.NICs()[0].Name(), gid.GID.Addr())
	// Output:
	// lo 127.0.0.1
}
