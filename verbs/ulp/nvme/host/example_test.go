package host_test

import (
	"context"
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// A host and a target in one process, as in a test: nothing is mounted, and no privileges are
// needed. The host finds the subsystem, and reads what it has written.
func Example() {
	const nqn = "nqn.2014-08.org.example:disk"
	lan := new(pipe.Switch)
	device := func(addr string) *verbs.Device {
		n, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
		if err != nil {
			log.Fatal(err)
		}
		dev, err := rdmatransport.Open(n, nil)
		if err != nil {
			log.Fatal(err)
		}
		return dev
	}
	t, err := target.Listen(device("10.0.0.1/24"), ":4420", &target.Config{
		NQN:        nqn,
		Namespaces: []target.Namespace{{Backend: target.NewMemory(64 << 20)}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer t.Close()

	ctx := context.Background()
	dev := device("10.0.0.2/24")
	entries, err := host.Discover(ctx, dev, "10.0.0.1:4420", nil)
	if err != nil {
		log.Fatal(err)
	}
	c, err := host.Dial(ctx, dev, entries[0].Addr.String(), &host.Config{NQN: entries[0].SubsystemNQN})
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	ns, err := c.Namespace(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.Identity().Model, ns)

	block := make([]byte, ns.BlockSize())
	copy(block, "hello, block device")
	if _, err := ns.WriteAt(block, 8<<20); err != nil {
		log.Fatal(err)
	}
	clear(block)
	if _, err := ns.ReadAt(block, 8<<20); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", block[:19])
	// Output:
	// SoftRNIC namespace 1, 131072 blocks of 512 bytes
	// hello, block device
}
