package target_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// A target with a block device in memory. Its network is in memory too; a real one is a link that
// other machines are on, or kernel.New.
func Example() {
	lan := new(pipe.Switch)
	host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		log.Fatal(err)
	}
	dev, err := rdmatransport.Open(host, nil)
	if err != nil {
		log.Fatal(err)
	}
	t, err := target.Listen(dev, ":4420", &target.Config{
		NQN:        "nqn.2014-08.org.example:disk",
		Namespaces: []target.Namespace{{Backend: target.NewMemory(64 << 20)}},
		Hosts:      []string{"nqn.2014-08.org.example:host"},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("port", t.Addr().Port(), "controllers", t.Stats().Controllers)
	if err := t.Close(); err != nil {
		log.Fatal(err)
	}
	// Output: port 4420 controllers 0
}
