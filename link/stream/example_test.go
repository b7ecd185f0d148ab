package stream_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link/stream"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
)

// An RDMA device on a cable to a virtual machine, which is started before or after with
//
//	qemu-system-x86_64 ... -device virtio-net-pci,netdev=net,host_mtu=4200 \
//		-netdev stream,id=net,server=off,addr.type=unix,addr.path=/tmp/vm0
func ExampleOpen() {
	l, err := stream.Open("/tmp/vm0", &stream.Config{Listening: true, MTU: 4200})
	if err != nil {
		log.Fatal(err)
	}
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.0.0.9/24"}}) // owns the link
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
