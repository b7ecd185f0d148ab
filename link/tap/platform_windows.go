package tap

import "github.com/songgao/water"

const advice = "install the TAP-Windows driver (tap0901) and name an adapter like this"

func platform(name string) water.PlatformSpecificParams {
	return water.PlatformSpecificParams{ComponentID: "tap0901", InterfaceName: name}
}
