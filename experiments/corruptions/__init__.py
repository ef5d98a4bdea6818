"""The 19 corruptions of CIFAR-C, generated for images of any size."""
