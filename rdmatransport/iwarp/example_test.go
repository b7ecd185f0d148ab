package iwarp_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/stack/netstack"
)

// A device whose iWARP connections use revision 1 of MPA (RFC 5044), and use no CRCs if the peer
// agrees. Applications need this package for its configuration only. They use the device with
// packages verbs and rdmacm.
func ExampleConfig() {
	host, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	if err != nil {
		log.Fatal(err)
	}
	defer host.Close()
	dev, err := rdmatransport.Open(host, &rdmatransport.Config{IWARP: iwarp.Config{Revision: 1, NoCRC: true}})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	_, err = rdmatransport.Open(host, &rdmatransport.Config{IWARP: iwarp.Config{Revision: 7}})
	fmt.Println(err)
	// Output:
	// open device: IWARP.Revision 7: must be an MPA revision, 1 or 2, or 0 for 2 and then 1
}
