package pipe_test

import (
	"fmt"
	"log"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
)

// Two ports of a switch, and a frame from one to the other. Most programs pass a port to
// netstack.New instead.
func Example() {
	var lan pipe.Switch
	a, b := lan.Port(), lan.Port()
	defer a.Close()
	defer b.Close()

	received := make(chan string)
	b.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			received <- string(f.Data[link.EthernetHeaderLen:])
		}
	})
	frame := append(append([]byte{}, b.MAC()...), a.MAC()...)
	frame = append(frame, 0x88, 0xb5) // EtherType: local experiments
	frame = append(frame, "hello"...)
	if _, err := a.Write([]link.Frame{{Data: frame}}); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v to %v: %s\n", a.MAC(), b.MAC(), <-received)
	// Output:
	// 02:53:52:00:00:01 to 02:53:52:00:00:02: hello
}

// A switch whose ports have the MTU of common Ethernet, and whose hosts exchange frames only.
func ExampleNew() {
	lan, err := pipe.New(&pipe.Config{MTU: 1500, FramesOnly: true})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(lan.Port().MTU())
	_, err = pipe.New(&pipe.Config{MTU: 100})
	fmt.Println(err)
	// Output:
	// 1500
	// pipe: MTU 100: must be 1280 to 65535 (1500 for a RoCE path MTU of 1024, 4200 for 4096)
}
