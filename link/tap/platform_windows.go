package tap

import "github.com/songgao/water"

const advice = "install the TAP-Windows driver (tap0901) and give an adapter this name"

func platform(name string) water.PlatformSpecificParams {
	return water.PlatformSpecificParams{ComponentID: "tap0901", InterfaceName: name}
}
