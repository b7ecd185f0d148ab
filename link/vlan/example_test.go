package vlan_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/vlan"
	"github.com/softrnic/softrnic/stack/netstack"
)

// Two hosts in VLAN 5 of a network.
func ExampleNew() {
	var lan pipe.Switch
	host := func(addr string) *netstack.Host {
		l, err := vlan.New(lan.Port(), 5)
		check(err)
		h, err := netstack.New(l, &netstack.Config{Addrs: []string{addr}})
		check(err)
		return h
	}
	a, b := host("10.0.0.1/24"), host("10.0.0.2/24")
	_, err := a.Ping(context.Background(), netip.MustParseAddr("10.0.0.2"))
	check(err)
	fmt.Println(a.NICs()[0].Name(), "and", b.NICs()[0].Name(), "reach each other")
	check(a.Close())
	check(b.Close())
	// Output:
	// pipe0.5 and pipe1.5 reach each other
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
