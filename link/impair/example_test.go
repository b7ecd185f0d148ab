package impair_test

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

func ExampleParse() {
	cfg, err := impair.Parse("loss=1%,out.delay=1ms±200us,drop=read-response:3,seed=7")
	check(err)
	fmt.Println(cfg.In.Loss, cfg.Out.Loss, cfg.Out.Delay, cfg.Out.Jitter, cfg.In.Rules[0].Nth, cfg.Seed)
	_, err = impair.Parse("loss=200%")
	fmt.Println(err)
	// Output:
	// 0.01 0.01 1ms 200µs 3 7
	// impair: loss=200%: "200%" is not a probability: write 0 to 1, or 0% to 100%
}

// Frames that host A sends take 20 ms to arrive.
func ExampleNew() {
	var lan pipe.Switch
	slow, err := impair.New(lan.Port(), &impair.Config{Out: impair.Direction{Delay: 20 * time.Millisecond}})
	check(err)
	a, err := netstack.New(slow, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	check(err)
	b, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	check(err)
	took, err := a.Ping(context.Background(), netip.MustParseAddr("10.0.0.2"))
	check(err)
	fmt.Println(took >= 20*time.Millisecond)
	check(a.Close())
	check(b.Close())
	// Output:
	// true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
