package roce_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/netstack"
)

// A device whose connections slow down when the network marks their packets (DCQCN). Applications
// need this package for its configuration only. They use the device with package verbs.
func ExampleConfig() {
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	dev, err := rdmatransport.Open(host, &rdmatransport.Config{RoCE: roce.Config{
		DCQCN: &roce.DCQCN{RPGMaxRate: 10e9}, // 10 Gbit/s; the other parameters have their defaults
	}})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	counters, err := dev.HWCounters()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(counters["rp_cnp_handled"], "congestion notifications so far")
	// Output:
	// 0 congestion notifications so far
}
