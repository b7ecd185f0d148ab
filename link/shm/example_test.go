//go:build linux

package shm_test

import (
	"fmt"
	"log"
	"os"

	"github.com/softrnic/softrnic/link/shm"
	"github.com/softrnic/softrnic/stack/netstack"
)

// A host on a segment. Other programs that open the segment "lab" are its neighbours. This program
// opens it twice.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "shm")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for _, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		// Without Directory, a directory of this user.
		l, err := shm.Open("lab", &shm.Config{Directory: dir})
		if err != nil {
			log.Fatal(err)
		}
		// Owns the link; rdmatransport.Open makes an RDMA device of the host.
		host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
		if err != nil {
			log.Fatal(err)
		}
		defer host.Close()
		fmt.Println(l.Name(), "with", len(l.Peers()), "others")
	}
	// Output:
	// shm:lab with 0 others
	// shm:lab with 1 others
}
