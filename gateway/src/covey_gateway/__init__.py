"""The gateway: relays client requests to ready endpoints, byte for byte where nothing must be translated."""
