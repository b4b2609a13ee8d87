"""Train a network on generated images of five unbalanced classes, audit it, and write the evidence report."""

import torch

import classwise as cw

COUNTS = {"good": 200, "scratch": 60, "dent": 40, "stain": 30, "crack": 20}


def parts(seed):
    """Grey images with noise, and the mark of their class at a random place."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.arange(5), torch.tensor([*COUNTS.values()]))
    x = 0.5 + 0.02 * torch.randn(len(y), 1, 16, 16, generator=generator)
    places = torch.randint(2, 10, (len(y), 2), generator=generator).tolist()
    for image, label, (row, column) in zip(x[:, 0], y.tolist(), places, strict=True):
        if label == 1:
            image[row, 2:14] += 0.4
        elif label == 2:
            image[row : row + 4, column : column + 4] -= 0.3
        elif label == 3:
            image[row : row + 4, column : column + 4] += 0.3
        elif label == 4:
            image[2:14, column] -= 0.4
    return cw.Images(x.clamp(0, 1), y, class_names=tuple(COUNTS))


train, test = parts(seed=0), parts(seed=1)
torch.manual_seed(0)
model = cw.load_model("small-cnn", data=train, width=0.25)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(20):
    for rows in torch.randperm(len(train)).split(50):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(train.x[rows]), train.y[rows]).backward()
        optimizer.step()

policy = "inspection-policy.yaml"
cw.audit(model, test, policy=policy, out="audits/parts")
evidence = cw.evidence("audits/parts", policy, "parts-evidence")
print(evidence.verdict, evidence.page)
